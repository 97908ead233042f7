"""Print the versions of all packages that are installed here, as constraints for pip: `make constraints`.

Only names and versions: where a package came from is not part of what was tested.
"""

import re
import sys
from importlib.metadata import distributions

OWN = re.compile(r"servebench[-_]")
LEFT_OUT = {"pip", "setuptools", "wheel"}


def main() -> None:
    """Write one line for each package, in the order of names."""
    found = {re.sub(r"[-_.]+", "-", one.name).lower(): one.version for one in distributions()}
    lines = [f"{name}=={found[name]}" for name in sorted(found) if name not in LEFT_OUT and not OWN.match(name)]
    sys.stdout.write(
        "# What the tests last passed with, by 'make constraints'. To install the same: PIP_CONSTRAINT=constraints.txt\n"
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
