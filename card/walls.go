package card

import (
	"net/url"
	"strings"
)

// isWall reports whether a title belongs to a page in front of the article that asks for
// consent, for a login, or whether a person is reading. A wrong yes costs little: the title
// that people gave stays.
func isWall(title string) bool {
	title = strings.ToLower(strings.NewReplacer("’", "'", "‑", "-").Replace(title))
	for _, begin := range [...]string{
		"just a moment", "attention required!", "checking your browser", "checking if the site connection", "verifying you are human", "verify you are", "are you a robot", "are you human", "robot or human",
		"access to this page has been denied", "access denied", "pardon our interruption", "ddos-guard", "ddos protection", "before you continue", "bevor sie ", "avant d'accéder", "one more step",
		"human verification", "security check", "vercel security checkpoint", "client challenge", "you have been blocked", "sorry, you have been blocked", "request rejected", "request blocked", "please enable ",
		"please turn javascript", "enable javascript", "un momento", "einen moment", "un instant", "making sure you're not a bot", "bot verification", "i'm not a robot", "unusual traffic",
		"400 ", "401 ", "403 ", "404 ", "410 ", "429 ", "500 ", "502 ", "503 ", "504 ", "error 4", "error 5",
	} {
		if strings.HasPrefix(title, begin) {
			return true
		}
	}
	title = strings.NewReplacer(" – ", "|", " — ", "|", " - ", "|", " · ", "|", " • ", "|", " / ", "|", " » ", "|", ": ", "|").Replace(title)
	for part := range strings.SplitSeq(title, "|") {
		switch strings.Trim(part, " .!…") {
		case "log in", "login", "log-in", "sign in", "sign-in", "signin", "log in or sign up", "sign in or register", "sign up", "register", "create an account", "create account", "member login", "account login",
			"log in to continue", "sign in to continue", "please log in", "please sign in", "single sign-on", "authentication required", "authentication", "session expired", "subscribe to read", "subscribe to continue",
			"anmelden", "anmeldung", "einloggen", "registrieren", "se connecter", "connexion", "identification", "s'identifier", "iniciar sesión", "inicia sesión", "inicio de sesión", "accedi", "accesso", "entrar", "iniciar sessão",
			"inloggen", "aanmelden", "logga in", "logg inn", "log ind", "kirjaudu sisään", "zaloguj się", "logowanie", "přihlášení", "giriş yap", "войти", "вход", "ログイン", "登录", "登入", "로그인",
			"consent", "cookie consent", "your privacy", "privacy consent", "your privacy choices", "privacy settings", "cookie settings", "we value your privacy", "cookie wall", "cookiewall", "datenschutzeinstellungen",
			"datenschutz-einstellungen", "cookie-einstellungen", "einwilligung", "privacy gate", "dpg media privacy gate",
			"captcha", "recaptcha", "robot check", "bot check", "forbidden", "unauthorized", "blocked", "not found", "page not found", "error", "page unavailable", "site maintenance", "maintenance", "loading", "redirecting", "untitled":
			return true
		}
	}
	return false
}

// isWallAddress reports whether redirects ended at the address of such a page.
func isWallAddress(first, at *url.URL) bool {
	if first.Host == at.Host && first.Path == at.Path {
		return false
	}
	switch label, _, _ := strings.Cut(strings.ToLower(at.Hostname()), "."); label {
	case "login", "signin", "auth", "account", "accounts", "sso", "id", "idp", "identity", "consent", "privacy", "captcha", "challenge", "challenges", "validate", "myprivacy":
		if first.Hostname() != at.Hostname() {
			return true
		}
	}
	before := strings.ToLower(first.Path)
	for part := range strings.SplitSeq(strings.ToLower(at.Path), "/") {
		name, _, _ := strings.Cut(part, ".")
		switch name {
		case "login", "log-in", "log_in", "logon", "signin", "sign-in", "sign_in", "sso", "oauth", "oauth2", "authorize", "authenticate", "auth", "consent", "collectconsent", "cookie-consent", "cookieconsent", "cookiewall", "cookie-wall",
			"privacy-gate", "captcha", "recaptcha", "challenge", "checkpoint", "validate", "verify", "blocked", "errors", "error", "404", "403", "not-found", "notfound", "unavailable":
			if !strings.Contains(before, name) {
				return true
			}
		}
	}
	return returnsTo(first, at)
}

// returnsTo reports whether the query of an address contains another one to return to.
func returnsTo(first, at *url.URL) bool {
	if isRoot(first.Path) {
		return false
	}
	for _, values := range at.Query() {
		for _, value := range values {
			if strings.HasSuffix(value, first.Path) || strings.HasSuffix(value, first.RequestURI()) || value == strings.Trim(first.Path, "/") {
				return true
			}
		}
	}
	return false
}
