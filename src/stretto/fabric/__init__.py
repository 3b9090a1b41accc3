"""What crosses processes stands on this: who is there, by what way, in which memory."""
