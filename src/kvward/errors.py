"""Every error kvward raises: one root, a stable code, and a next step.

Findings and verdicts are data, never exceptions; a cache miss is not an error.
The command line maps the second level of this tree to exit codes
(see `ExitCode` in `kvward.terms`).
"""

from __future__ import annotations

from typing import ClassVar


class KvwardError(Exception):
    """Root of every error raised by this package.

    Args:
        message: One sentence in the caller's words. Never holds a secret or a prompt.
        hint: The next step that mends it, if one is known. A traceback shows it as well: inside an
            engine that is all that anybody gets to see.
    """

    code: ClassVar[str] = "kvward"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint is not None:
            self.add_note(f"Next: {hint}")

    def __str__(self) -> str:
        return self.message


class UsageError(KvwardError):
    """The call was wrong; change the call."""

    code = "usage"


class ConfigError(UsageError):
    """A configuration file or option is missing, unreadable or contradictory."""

    code = "usage.config"


class ContractError(UsageError):
    """A contract is unreadable, is not of its format, or contradicts itself."""

    code = "usage.contract"


class IsolationError(KvwardError):
    """Going on would break isolation, so nothing goes on."""

    code = "isolation"


class ScopeMissingError(IsolationError):
    """A request reached a place that needs a scope, without one."""

    code = "isolation.scope-missing"


class ScopeMismatchError(IsolationError):
    """A value made for one scope was presented under another."""

    code = "isolation.scope-mismatch"


class CapabilityError(IsolationError):
    """The engine or backend cannot do what the policy needs."""

    code = "isolation.capability"


class OpenError(KvwardError):
    """Authenticated state did not open. The message is the same for every reason.

    Attributes:
        reason: Why, for counters inside; never shown to a caller. None where only the tag knows.
    """

    code = "open"

    def __init__(self, message: str, *, hint: str | None = None, reason: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class KeyringError(KvwardError):
    """A key could not be used."""

    code = "keyring"


class EpochRetiredError(KeyringError):
    """The epoch of this key has ended."""

    code = "keyring.epoch-retired"


class KeyUnavailableError(KeyringError):
    """The key is not there, or its file is not fit to be used."""

    code = "keyring.unavailable"


class KeyringUnavailableError(KeyringError):
    """The keyring's database or the key management service does not answer."""

    code = "keyring.no-answer"


class ReceiptError(KvwardError):
    """A receipt was not signed by the key that it should be signed by, or was changed."""

    code = "receipt"


class StoreError(KvwardError):
    """A store could not do what it was asked. To an engine that is a miss, never a failure.

    Attributes:
        transient: Whether trying again later may help.
    """

    code = "store"
    transient: ClassVar[bool] = False


class BackendUnavailableError(StoreError):
    """Nothing answers, or not in time."""

    code = "store.backend-unavailable"
    transient = True


class BackendDataError(StoreError):
    """The backend answered with something that it never stored in this form."""

    code = "store.backend-data"


class QuotaExceededError(StoreError):
    """There is no room for the entry without taking it from another tenant."""

    code = "store.quota-exceeded"


class AdapterError(KvwardError):
    """An engine, or the code that speaks to it, failed."""

    code = "adapter"


class ModelLoadError(AdapterError):
    """A model folder lacks something or holds something that is not understood."""

    code = "adapter.model-load"


class EngineProtocolError(AdapterError):
    """The engine behaved unlike its documentation."""

    code = "adapter.engine-protocol"


class GatewayError(KvwardError):
    """The gateway could not serve."""

    code = "gateway"


class UnauthenticatedError(GatewayError):
    """No principal could be established. The same for every reason."""

    code = "gateway.unauthenticated"


class UpstreamError(GatewayError):
    """The upstream did not answer as a server should."""

    code = "gateway.upstream"


class AuditError(KvwardError):
    """The audit could not be carried out. Never means that a leak was found."""

    code = "audit"


class TargetError(AuditError):
    """The audited endpoint is unreachable or does not speak the protocol."""

    code = "audit.target"


class TargetUnreachableError(TargetError):
    """Nothing answered at the target's address."""

    code = "audit.target-unreachable"


class TargetRefusedError(TargetError):
    """The target answered and refused: credentials, model or route."""

    code = "audit.target-refused"


class BudgetExceededError(AuditError):
    """The plan would cost more requests, tokens or money than was allowed."""

    code = "audit.budget-exceeded"


class ReportError(AuditError):
    """A report of an audit is not one, or does not agree with itself."""

    code = "audit.report"


class LedgerError(KvwardError):
    """A ledger could not be written or read."""

    code = "ledger"


class LedgerBusyError(LedgerError):
    """Another process writes this ledger."""

    code = "ledger.busy"


class VerificationError(LedgerError):
    """Evidence does not verify: it is damaged, was changed, or is not what it should be."""

    code = "ledger.verification"


class InclusionError(VerificationError):
    """A proof does not show that the entry is in the tree."""

    code = "ledger.inclusion"


class ConsistencyError(VerificationError):
    """A proof does not show that the later tree begins with the earlier one."""

    code = "ledger.consistency"


class CheckpointSignatureError(VerificationError):
    """A checkpoint or note was not signed by a key that is trusted, or was changed."""

    code = "ledger.checkpoint-signature"


class ForkError(LedgerError):
    """Two checkpoints of one origin cannot both be true."""

    code = "ledger.fork"


class DocumentError(VerificationError):
    """A document is not in the form that it should have, or reads in more than one way."""

    code = "ledger.document"


class EnvelopeError(VerificationError):
    """An envelope was changed, or is not signed by a key that is accepted."""

    code = "ledger.envelope"


class BundleError(VerificationError):
    """A bundle is not one, or holds what no bundle may hold."""

    code = "ledger.bundle"
