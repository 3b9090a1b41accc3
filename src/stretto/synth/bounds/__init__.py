"""What no schedule can beat, each bound with its proof."""
