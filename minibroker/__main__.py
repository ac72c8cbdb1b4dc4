"""``python -m minibroker``: the same command line as the ``minibroker`` script.

Owns nothing; it only hands over, so that a broker can be started without a script on the path.
"""

from __future__ import annotations

from minibroker.cli import main

if __name__ == "__main__":
    main()
