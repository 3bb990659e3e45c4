"""Failed or lost jobs sent to a server again, none of them twice."""
