"""`python -m servebench` is `servebench`."""

from servebench.cli import main

raise SystemExit(main())
