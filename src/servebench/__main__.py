"""`python -m servebench` is `servebench`."""

import sys

if not sys.flags.safe_path:
    # `-m` puts the current folder first, whose files must not be imported
    del sys.path[0]

from servebench.cli.main import main

raise SystemExit(main())
