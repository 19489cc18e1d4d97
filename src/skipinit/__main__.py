"""`python -m skipinit`: the command line, also under torchrun."""

import sys

from .cli import main

sys.exit(main())
