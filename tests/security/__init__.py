"""Who is kept from what: every statement of docs/security.md."""
