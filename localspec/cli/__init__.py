"""The commands, one file each: their arguments and their output. `main.py` registers the `app` of each file."""

import signal

# Until main() can print a sentence, Ctrl+C ends the program without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
