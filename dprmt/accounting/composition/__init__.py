"""From steps to certified bounds: discrete losses, tilted transforms, refinement until the interval is narrow."""
