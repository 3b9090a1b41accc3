"""What ranks tell each other on GPUs: flag sets, staging, records of who is missing."""
