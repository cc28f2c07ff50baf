"""What `minimind launch` looks at before it runs the launcher: its words, hosts and devices."""
