"""Speed and bytes of the runtime, as ratios to a floor that is measured in the same run."""
