"""``python -m tidebox.egress DESCRIPTOR``: started by the server, and by nobody else."""

from __future__ import annotations

import sys

from tidebox.egress.process import main

main(int(sys.argv[1]))
