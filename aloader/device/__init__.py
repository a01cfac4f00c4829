"""PIN and COPY: between shared memory and an accelerator."""
