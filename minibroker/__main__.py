"""``python -m minibroker``: the same command line as the ``minibroker`` script.

Owns the order of the module path. Invariant: as with the script, no module of the working
directory, which Python puts first, is imported instead of one that we need.
"""

from __future__ import annotations

import sys

if not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from minibroker.cli import main

if __name__ == "__main__":
    main()
