#!/bin/sh
# Everything that needs a GPU, in one run of at most eight minutes; see dev/gpu_check.py.
exec /usr/bin/env python3 "$(dirname "$0")/gpu_check.py" "$@"
