"""What `make bench` measures: speed as ratios within one run, accuracy against exact values."""
