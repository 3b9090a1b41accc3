"""What a caller asks for: verbs described once, arguments read, arrays checked.

In: a verb and its arguments. Out: a request, or an error that says what to do. Never:
a plan or a launch.
"""
