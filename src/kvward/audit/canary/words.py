"""The vocabulary of the canary: 256 short, common, inoffensive English words.

Lower case, four to six letters, no two of one stem. On the canary model each is one token; on
most real tokenizers, with a leading space, as well.
"""

from __future__ import annotations

_TEXT = """
acorn actor adult agent alarm album angle ankle apple apron arena arrow atlas attic autumn badge
baker banana barrel basin basket beach beacon beard bench berry bishop blade board boat bottle
bottom branch bread brick bridge broom brush bucket button cabin cable cactus camera canal candle
canyon carbon carpet carrot castle cattle cellar chain chalk cheese cherry chess circle circus
clay clock cloud clover coast cobalt coffee collar comet copper coral corner cotton couch crane
crater crayon cream cross crown crystal daisy dance desert desk diesel dinner doctor dolphin
donkey dragon drawer drum eagle editor elbow engine falcon fence ferry fiddle field finger flame
flint flower flute forest forge fossil frame frost garage garden garlic gate ginger glass globe
glove goose grain granite grape gravel guitar hammer harbor hazel helmet herald hill honey hornet
horse hotel island ivory jacket jelly jewel jungle kernel kettle kitten ladder lagoon lamp laptop
lemon letter lily linen lizard lobby locker lotus magnet maple marble market meadow medal melon
metal mirror mitten monkey moon motor museum mustard needle nickel novel number oasis ocean office
olive onion orange orbit orchid otter paddle palace panda paper parcel parrot pearl pebble pencil
pepper piano picnic pigeon pillow pilot planet plum pocket polar pond potato prism puzzle quartz
rabbit radio raven ribbon river robin rocket saddle salmon sand scarf school season shadow shelf
silver spider spoon spring square statue stone summit sunset table temple ticket tiger timber
tomato tower tulip tunnel turtle valley velvet violin wagon walnut water whale wheat window winter
wizard yellow zebra
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
CODE_WORDS = frozenset(WORDS)
