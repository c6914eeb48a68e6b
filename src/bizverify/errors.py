"""Everything that bizverify raises on purpose.

::

    BizverifyError                      exit code
    ├── InputError                      2   a file that cannot be read as a table
    │   └── ColumnError                 2   no number column, or more than one that fits equally well
    ├── OutputError                     2   a result that cannot be written where it was asked for
    ├── RegistryError                   2   a registry file that is not one, or a source that cannot become one
    ├── ModelError                      2   a scorecard file that does not hold together
    ├── UsageError                      2   arguments that contradict each other
    │   └── NumberError                 2   a value that cannot be a business number (carries its ``problem``)
    └── AccountingError                 1   rows in and rows out do not agree; nothing was published

A message names what was looked at (file, sheet, row, column, value), what is wrong with it, and what to do.
"""


class BizverifyError(Exception):
    """Base of all errors raised on purpose; ``str(error)`` is one line for people."""

    exit_code = 2


class InputError(BizverifyError):
    """The input file cannot be read as a table."""


class ColumnError(InputError):
    """The columns that are needed cannot be chosen from the headers."""


class OutputError(BizverifyError):
    """The result cannot be written where it was asked for."""


class RegistryError(BizverifyError):
    """The registry is not one, or cannot be built from the given sources."""


class ModelError(BizverifyError):
    """The scorecard file does not hold together."""


class UsageError(BizverifyError):
    """The arguments contradict each other or name something that does not exist."""


class NumberError(UsageError):
    """The value cannot be a business registration number.

    ``problem`` is one of :data:`bizverify.number.PROBLEMS`. The message does not repeat the value: thirteen
    digits may be a person's resident registration number.
    """

    def __init__(self, problem: str, message: str) -> None:
        super().__init__(message)
        self.problem = problem

    def __reduce__(self) -> tuple[type["NumberError"], tuple[str, str]]:
        return type(self), (self.problem, str(self))


class AccountingError(BizverifyError):
    """Rows in and rows out do not agree: a defect of bizverify, so nothing was published."""

    exit_code = 1
