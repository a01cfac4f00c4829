"""The PARENT: owns the template and the processes, and drives epochs, on an event loop or in the calling thread."""
