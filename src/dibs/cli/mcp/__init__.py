"""The server of `dibs mcp`: tools for programs that speak the Model Context Protocol."""
