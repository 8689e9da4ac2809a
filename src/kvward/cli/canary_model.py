"""`kvward canary-model DIR`: write the glass-box checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

from kvward.audit.canary.checkpoint import DEFAULT_GAIN, write_canary_model


@click.command("canary-model")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--gain", type=click.FloatRange(min=1.0), default=DEFAULT_GAIN, show_default=True)
def command(folder: Path, gain: float) -> None:
    """Write the canary checkpoint to DIR: safetensors and tokenizer.

    Load it into any engine instead of the real weights, in float32; `kvward audit` then reads
    every foreign word in the cache from the logprobs.
    """
    write_canary_model(folder, gain=gain)
    click.echo(f"Wrote the canary model to {folder}")
