"""Views of a trace: live widget, static HTML, text. They read the trace and never write it."""
