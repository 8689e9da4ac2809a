"""The evidence bundle: what a third party needs to verify audits offline, in one place.

`manifest`, `archive` and `reading` say what a bundle is and read it; `log_part`, `audit_part` and
`result` check it; `writing` and `collecting` make it, and nothing that checks imports them.
"""
