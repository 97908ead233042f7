"""What passes between rooms. Every room may import this one; it imports no other."""
