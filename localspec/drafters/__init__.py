"""One file a method. `load` imports the one that is asked for; `names` lists them without importing any."""
