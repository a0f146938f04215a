"""Several hosts that run one program, and how a process ends among them."""
