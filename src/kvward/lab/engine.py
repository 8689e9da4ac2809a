"""The running engine: a scheduler in a thread of its own."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kvward.errors import EngineProtocolError, UsageError
from kvward.lab.behaviour import Behaviour
from kvward.lab.interface import (
    EngineOptions,
    GenerationRequest,
    LlamaConfig,
    LlamaWeights,
    SlotView,
    TokenEvent,
    Ward,
)
from kvward.lab.scheduler import Scheduler
from kvward.lab.variants import Variants

_FAILED = "The engine failed in a step; its cache was dropped."
_STOPPED = "The engine was stopped."

Result = TypeVar("Result")


class LabEngine:
    """Implements `Engine`.

    Args:
        behaviour: The sound one, or one with defects planted.
        ward: Isolation inside the engine; None runs it without.
        manifest_digest: Names the exact model.
    """

    def __init__(
        self,
        weights: LlamaWeights,
        config: LlamaConfig,
        options: EngineOptions,
        *,
        behaviour: Behaviour,
        ward: Ward | None,
        manifest_digest: bytes,
    ) -> None:
        smallest = min(options.block_tokens, options.max_batch_tokens, options.max_running_requests)
        if options.num_blocks < 2 or smallest < 1:
            raise UsageError("The engine needs two blocks, and one token and request at a time.")

        variants = Variants(weights, manifest_digest=manifest_digest)

        def new_scheduler() -> Scheduler:
            return Scheduler(
                weights,
                config,
                options,
                behaviour=behaviour,
                ward=ward,
                manifest_digest=manifest_digest,
                variants=variants,
            )

        self._variants = variants
        self._new_scheduler = new_scheduler
        self._scheduler = new_scheduler()
        self._past_stats: Counter[str] = Counter()
        self._commands: deque[Callable[[Scheduler], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="lab-engine", daemon=True)
        self._thread.start()

    def submit(self, request: GenerationRequest, on_event: Callable[[TokenEvent], None]) -> None:
        """Queue a request after checking that it can run.

        Raises:
            EngineProtocolError: the engine has not been started, or has been stopped.
        """
        self._scheduler.check(request)
        with self._wake:
            # Under the lock: what is queued before the thread sees the stop is ended by it.
            if self._stopping or self._thread is None:
                raise EngineProtocolError("The engine is not running.", hint="Start it first.")
            self._commands.append(lambda scheduler: scheduler.submit(request, on_event))
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """Stop a request if it still runs."""
        with self._wake:
            self._commands.append(lambda scheduler: scheduler.cancel(request_id))
            self._wake.notify()

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the names of the adapters that are loaded."""
        return self._variants.adapters

    def load_adapter(self, name: str, *, seed: int) -> None:
        """Load an adapter between two steps, in place of one of the same name."""
        self._between_steps(lambda _: self._variants.load_adapter(name, seed=seed))

    def load_base(self, *, seed: int) -> None:
        """Load other weights in place of the base's between two steps."""
        self._between_steps(lambda _: self._variants.load_base(seed=seed))

    def erase(self, cache_salt: str | None) -> int:
        """Forget all state that was computed under a salt until now."""
        return self._between_steps(lambda scheduler: scheduler.erase(cache_salt))

    def slots(self, cache_salt: str | None) -> list[SlotView]:
        """Return the slots whose last request ran under a salt."""
        return self._between_steps(lambda s: s.slots().view(scope=s.scope_of(cache_salt)))

    def save_slot(self, slot_id: int, cache_salt: str | None) -> bytes | None:
        """Return the state in a slot as bytes; None when there is none of this salt."""
        return self._between_steps(
            lambda s: s.slots().take_out(slot_id, scope=s.scope_of(cache_salt))
        )

    def restore_slot(self, slot_id: int, cache_salt: str | None, state: bytes) -> int:
        """Put a saved state into a slot; returns how many blocks it has."""
        return self._between_steps(
            lambda s: s.slots().put_back(slot_id, state, scope=s.scope_of(cache_salt))
        )

    def stats(self) -> dict[str, int]:
        """Return counters since the start."""
        # Copies first: the thread may add a counter while they are summed.
        return dict(self._past_stats.copy() + self._scheduler.stats.copy())

    def stop(self) -> None:
        """Stop the thread and wait for it; open requests end with an error."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _between_steps(self, command: Callable[[Scheduler], Result]) -> Result:
        """Do something in the engine's thread, and wait for it.

        Raises:
            EngineProtocolError: the engine has been stopped.
        """
        done: Future[Result] = Future()

        def run(scheduler: Scheduler) -> None:
            try:
                done.set_result(command(scheduler))
            except UsageError as exc:  # refused, and nothing was done
                done.set_exception(exc)
            except Exception as exc:
                done.set_exception(exc)
                raise

        with self._wake:
            if self._stopping or self._thread is None:
                raise EngineProtocolError("The engine is not running.", hint="Start it first.")
            self._commands.append(run)
            self._wake.notify()
        return done.result()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not (self._stopping or self._commands or self._scheduler.has_work):
                    self._wake.wait()
                # Seen together: what was queued before the stop is in hand when it is obeyed.
                commands, stopping = tuple(self._commands), self._stopping
                self._commands.clear()
            for command in commands:
                self._guard(command)
            if stopping:
                self._scheduler.fail_all(_STOPPED)
                return
            self._guard(Scheduler.step)

    def _guard(self, work: Callable[[Scheduler], None]) -> None:
        """Do something with the scheduler; if that goes wrong, nobody goes on with its memory."""
        try:
            work(self._scheduler)
        except Exception:  # noqa: BLE001 - whatever went wrong, the thread must outlive it
            self._past_stats += self._scheduler.stats
            self._past_stats["failed_steps"] += 1
            failed, self._scheduler = self._scheduler, self._new_scheduler()
            failed.fail_all(_FAILED)
