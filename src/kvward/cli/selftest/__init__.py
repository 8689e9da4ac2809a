"""`kvward selftest`: the auditor against every defect of the lab, and against none.

Only the lab's register is read here, for names, classes, what each defect should show in, and how
to start the lab for it. The auditor knows nothing of any of it: it is given an address and keys.
"""

from kvward.cli.selftest.command import command

__all__ = ["command"]
