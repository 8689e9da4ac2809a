"""What every trial asked: its prompt, made again from its recipe, once."""

from __future__ import annotations

from kvward.audit.history import Trial
from kvward.audit.plan import Plan
from kvward.audit.prompts import Prompt, repeat_prompt
from kvward.audit.sessions import audit_sessions


class Asked:
    """The prompts of a plan, made again when somebody asks for them, and kept."""

    def __init__(self, plan: Plan) -> None:
        self._seed = plan.seed
        self._sessions = {(s.tenant, s.conversation): s for s in audit_sessions(plan)}
        self._prompts: dict[tuple[tuple[str, str] | None, str], Prompt] = {}

    def words(self, trial: Trial) -> tuple[str, ...]:
        """Return the words that a trial sent.

        Raises:
            ConfigError: Its recipe is none of its session.
        """
        whose = None if trial.scope is not None else (trial.tenant, trial.conversation)
        key = (whose, trial.prompt)
        if key not in self._prompts:
            session = None if whose is None else self._sessions[whose]
            self._prompts[key] = repeat_prompt(self._seed, trial.prompt, session=session)
        return self._prompts[key].words
