"""What the Valkey backend asks a server to do in one step: count, make room, forget.

Every script works on the keys of one tenant, which share a hash tag and so lie on one node. It is
given one of them and derives the others. Times are the server's own, so that the index and the
expiry of the entries cannot disagree however wrong a client's clock is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

# The header makes a server that is out of memory refuse a script as a whole, before its first
# write. Those that only take away are run even then.
_ADDS = "#!lua\n"
_TAKES_AWAY = "#!lua flags=allow-oom\n"

# Numbers are written out: left to Lua, those of sixteen digits would lose their last ones.
_COMMON = """
local use = KEYS[1]
local root = string.sub(use, 1, -4)
local age, due, len = root .. 'age', root .. 'due', root .. 'len'
local function digits(number) return string.format('%.0f', number + 0) end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local function forget(member)
  local num_bytes = redis.call('HGET', len, member)
  if not num_bytes then return 0 end
  redis.call('UNLINK', root .. member)
  redis.call('HDEL', len, member)
  redis.call('ZREM', age, member)
  redis.call('ZREM', due, member)
  redis.call('ZREM', root .. 'in:' .. string.sub(member, 1, 32), member)
  redis.call('HINCRBY', use, 'bytes', digits(0 - num_bytes))
  return 1
end

local function sweep(limit)
  local past = redis.call('ZRANGEBYSCORE', due, '-inf', digits(now_ms), 'LIMIT', 0, limit)
  for _, member in ipairs(past) do forget(member) end
end

local function leave_nothing_of_nobody()
  if redis.call('EXISTS', len) == 0 then redis.call('DEL', use) end
end
"""


@dataclass(frozen=True, slots=True)
class Script:
    """Lua source and the digest under which a server keeps it."""

    source: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


# Arguments: share, then for each entry its staged key, its member, and its remaining life in ms.
# Answers 1 for each entry kept and 0 for each that is not.
COMMIT = Script(
    _ADDS
    + _COMMON
    + """
sweep(256)
local share = tonumber(ARGV[1])
local kept = {}
for at = 2, #ARGV, 3 do
  local staged, member, life_ms = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local num_bytes = redis.call('STRLEN', staged)
  if redis.call('EXISTS', staged) == 0 then
    kept[#kept + 1] = 0
  elseif num_bytes > share then
    redis.call('UNLINK', staged)
    kept[#kept + 1] = 0
  else
    forget(member)
    while tonumber(redis.call('HGET', use, 'bytes') or '0') + num_bytes > share do
      forget(redis.call('ZRANGE', age, 0, 0)[1])
      redis.call('HINCRBY', use, 'evicted', 1)
    end
    local last = tonumber(redis.call('HGET', use, 'last') or '0')
    local order = digits(math.max(last + 1, time[1] * 1000000 + time[2]))
    local due_ms = digits(now_ms + life_ms)
    redis.call('RENAME', staged, root .. member)
    redis.call('PEXPIREAT', root .. member, due_ms)
    redis.call('HSET', len, member, num_bytes)
    redis.call('ZADD', age, order, member)
    redis.call('ZADD', due, due_ms, member)
    redis.call('ZADD', root .. 'in:' .. string.sub(member, 1, 32), order, member)
    redis.call('HSET', use, 'last', order)
    redis.call('HINCRBY', use, 'bytes', num_bytes)
    kept[#kept + 1] = 1
  end
end
leave_nothing_of_nobody()
return kept
"""
)

# Arguments: members.
DELETE = Script(
    _TAKES_AWAY
    + _COMMON
    + """
local forgotten = 0
for _, member in ipairs(ARGV) do forgotten = forgotten + forget(member) end
leave_nothing_of_nobody()
return forgotten
"""
)

# Arguments: scope in hexadecimal or nothing, the youngest to go or nothing, how many at most.
# Answers how many went, how many were seen, and the youngest to go.
PURGE = Script(
    _TAKES_AWAY
    + _COMMON
    + """
local index = age
if ARGV[1] ~= '' then index = root .. 'in:' .. ARGV[1] end
local youngest = ARGV[2]
if youngest == '' then youngest = redis.call('HGET', use, 'last') or '0' end
local members = redis.call('ZRANGEBYSCORE', index, '-inf', youngest, 'LIMIT', 0, ARGV[3])
local forgotten = 0
for _, member in ipairs(members) do forgotten = forgotten + forget(member) end
leave_nothing_of_nobody()
return {forgotten, #members, youngest}
"""
)

# No arguments. Answers entries, bytes and evictions, after a sweep.
USAGE = Script(
    _TAKES_AWAY
    + _COMMON
    + """
sweep(1024)
local answer = {
  redis.call('HLEN', len),
  tonumber(redis.call('HGET', use, 'bytes') or '0'),
  tonumber(redis.call('HGET', use, 'evicted') or '0'),
}
leave_nothing_of_nobody()
return answer
"""
)
