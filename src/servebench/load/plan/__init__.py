"""What will be sent and when: levels, arrival times, searches, session order. Pure."""
