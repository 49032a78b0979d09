"""What the authoring API needs of the machine that runs a workflow.

Owns: the Protocol `Runtime`, how the current one is found, and the inputs it takes.
Never: an implementation (``replay`` has it), I/O, threads, clocks.
"""
