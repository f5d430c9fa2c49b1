package card

import (
	"net/url"
	"strings"

	"github.com/weir-social/weir/internal/links/link/title"
)

// isWallAddress reports whether redirects ended at the address of such a page.
func isWallAddress(first, at *url.URL) bool {
	if first.Host == at.Host && first.Path == at.Path {
		return false
	}
	switch label, _, _ := strings.Cut(strings.ToLower(at.Hostname()), "."); label {
	case "login", "signin", "auth", "account", "accounts", "sso", "id", "idp", "identity", "consent", "privacy", "captcha",
		"challenge", "challenges", "validate", "myprivacy":
		if first.Hostname() != at.Hostname() {
			return true
		}
	}
	before := strings.ToLower(first.Path)
	for part := range strings.SplitSeq(strings.ToLower(at.Path), "/") {
		name, _, _ := strings.Cut(part, ".")
		switch name {
		case "login", "log-in", "log_in", "logon", "signin", "sign-in", "sign_in", "sso", "oauth", "oauth2", "authorize",
			"authenticate", "auth", "consent", "collectconsent", "cookie-consent", "cookieconsent", "cookiewall", "cookie-wall",
			"privacy-gate", "captcha", "recaptcha", "challenge", "checkpoint", "validate", "verify", "blocked", "errors", "error",
			"404", "403", "not-found", "notfound", "unavailable":
			if !strings.Contains(before, name) {
				return true
			}
		}
	}
	return returnsTo(first, at) || title.IsWallAddress(at)
}

// returnsTo reports whether the query of an address contains another one to return to.
func returnsTo(first, at *url.URL) bool {
	if isRoot(first.Path) {
		return false
	}
	for _, values := range at.Query() {
		for _, value := range values {
			if hidden := title.Hidden(value); hidden != "" {
				value = hidden
			}
			if strings.HasSuffix(value, first.Path) || strings.HasSuffix(value, first.RequestURI()) || value == strings.Trim(first.Path, "/") {
				return true
			}
		}
	}
	return false
}
