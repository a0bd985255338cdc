"""weakincentives: every tool call typed, governed and transactional, inside your process."""
