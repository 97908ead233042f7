"""`python -m servebench` is `servebench`."""

from servebench.cli.main import main

raise SystemExit(main())
