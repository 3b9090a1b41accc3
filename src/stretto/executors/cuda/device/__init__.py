"""The device: the driver, memory that every rank can name, arrays that lie there."""
