"""What `research/bench_report.py` is made of: readings, who is timed, sections, and the page drawn from them."""
