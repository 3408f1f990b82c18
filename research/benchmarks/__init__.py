"""The parts of `research/bench_report.py`: readings, contenders, sections, and the page drawn from them."""
