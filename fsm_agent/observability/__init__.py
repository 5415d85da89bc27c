"""What operators see of runs: logs, metrics, traces. Off unless they are asked for."""
