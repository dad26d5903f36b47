"""Tags of the templates of dibs, which Django finds by the name of this package."""
