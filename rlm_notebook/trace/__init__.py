"""What happened in a run: events, the tree they fold into, and the file that keeps them."""
