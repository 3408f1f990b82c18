"""One file per command: arguments, one call, output. `main.py` registers them; each command's file has its `app`."""

import signal

# Until main() can print a sentence, Ctrl+C ends the program without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
