package schema

// RequireExtension is requireExtension.
var RequireExtension = requireExtension
