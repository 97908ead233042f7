"""HTTP/1.1 framing, server-sent events, and which events carry generated content."""
