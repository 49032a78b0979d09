"""The web view: pages for people, made on the server, without scripts and without a build step."""
