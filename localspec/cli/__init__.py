"""One file a command: arguments, one call, print. `main.py` wires them; each command's file holds its `app`."""

import signal

# Until main() can answer with a sentence, Ctrl+C ends the program as it ends any other, without a traceback.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
