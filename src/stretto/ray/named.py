"""The word by which Ray finds the backend and the transport."""

NAME = "STRETTO"
"""The word for `backend=` and `tensor_transport=`."""
