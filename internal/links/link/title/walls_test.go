package title

import (
	"net/url"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestWallsAreNoArticles(t *testing.T) {
	t.Parallel()
	for _, title := range []string{
		"Just a moment...", "Attention Required! | Cloudflare", "Bank - Are you a robot?", "Are you a robot?",
		"paper.example | Client Challenge", "Robot Challenge Screen", "Please Wait... | Cloudflare",
		"Radware Bot Manager Captcha", "Performing security verification", "Access Denied", "403 Forbidden",
		"Error 403 (Forbidden)!!1", "HTTP 404 - Page not found", "404", "The page you requested was not found",
		"Unsupported browser",
		"Log in • Example", "LOGIN", "Log in to Paper", "Log into Facebook", "Facebook – log in or sign up",
		"LinkedIn Login, Sign in | LinkedIn", "Sign in: Example", "Anmelden - Zeitung", "Consent | Zeitung",
		"Yahoo ist Teil der Yahoo Markenfamilie",
		"Before you continue to Google Search", "TikTok - Make Your Day", "Reddit - The heart of the internet",
		"Reddit - Please wait for verification", "Making sure you’re not a bot!", "Making sure you&#39;re not a bot!",
		"Nur einen Moment…", "Un instant…", "Один момент…", "少々お待ちください...", "请稍候…", "잠시만 기다려 주세요…", "Bir dakika lütfen...",
		"Paper | Home", "Paper - One moment, please", "Chwileczkę…",
		"Bitte bestätigen Sie, dass Sie ein Mensch sind", "ログイン", "Home | Paper",
		"Verify Your Humanity", "Checking if you're human", "Please complete the CAPTCHA", "Your request has been blocked",
		"Access denied | paper.example used Cloudflare to restrict access", "Error 1020", "paper.example | 521: Web server is down",
		"Request unsuccessful. Incapsula incident ID: 0-0", "503 Backend fetch failed", "451: Unavailable due to legal reasons",
		"404 Page", "Oops! That page can’t be found.", "Sorry, this page can't be found", "Video unavailable", "Article not found",
		"Error establishing a database connection", "Welcome to nginx!", "Create Next App", "[object Object]",
		"Subscribe to The Paper", "Subscribe now | Paper", "Create a free account to continue reading", "Paper Login", "Paper Error Page",
		"Welcome to Paper", "You are now leaving Paper", "Cookie Policy", "We use cookies",
		"Zustimmung erforderlich", "Ich bin kein Roboter", "Fehler 404", "Artikel nicht gefunden", "Jetzt abonnieren",
		"Mit Werbung weiterlesen",
		"Vérifiez que vous êtes humain", "Erreur 403", "Cette page n'existe pas", "Abonnez-vous pour lire la suite", "Gérer mes cookies",
		"Verifique que es humano", "La página no existe", "Suscríbete para seguir leyendo", "Política de cookies",
		"Confirme que você é humano", "Erro 404", "Assine para continuar lendo", "Verifica di essere umano", "La pagina non esiste",
		"Abbonati per continuare a leggere", "人間であることを確認してください", "404エラー",
		"お探しのページは見つかりません", "ただいまメンテナンス中です",
		"Bevestig dat u een mens bent", "Deze pagina bestaat niet", "Abonneer je om verder te lezen", "Toegang geblokkeerd",
		"İnsan olduğunuzu doğrulayın", "Aradığınız sayfa bulunamadı", "Üye girişi", "Çerez politikası", "Hata 404",
		"Potwierdź, że jesteś człowiekiem", "Strona nie istnieje", "Błąd 404", "Zaloguj się, aby czytać dalej",
	} {
		for _, address := range []string{"https://paper.example/2026/11/the-bank-raises-rates", "https://paper.example/s/1"} {
			require.Equal(t, Wall, Why(Clean(Decode(title), 300), address), "%s at %s", title, address)
		}
	}
}

// TestArticlesAreNoWalls has titles that contain the phrases of walls, or are one.
func TestArticlesAreNoWalls(t *testing.T) {
	t.Parallel()
	for title, address := range map[string]string{
		"Are you a robot?":                                             "https://mag.example/2026/are-you-a-robot",
		"Are You a Robot? | The Magazine":                              "https://mag.example/2026/are-you-a-robot-12345.html",
		"Are you a robot? How captchas took over the web":              "https://mag.example/s/1",
		"“Are you human?” asks the dentist's new machine":              "https://mag.example/s/1",
		"Access denied: how a border town lost its only doctor":        "https://mag.example/s/1",
		"404 herons counted on the estuary":                            "https://mag.example/s/1",
		"403 days in the cold":                                         "https://mag.example/s/1",
		"How to log in to your router":                                 "https://mag.example/s/1",
		"Log in to your router with a spoon":                           "https://mag.example/s/1",
		"Before you continue to scroll, read this":                     "https://mag.example/s/1",
		"Just a moment in the life of a heron":                         "https://mag.example/s/1",
		"Just a Moment":                                                "https://songs.example/track/4uLU6hMCjMI75M1A2tKUQC",
		"Home":                                                         "https://songs.example/track/4uLU6hMCjMI75M1A2tKUQC",
		"Please wait, the train will come – a play in one act for two": "https://mag.example/s/1",
		"Consent is not a checkbox":                                    "https://mag.example/s/1",
		"Consent | The Magazine":                                       "https://mag.example/books/consent-by-a-reader",
		"Page not found":                                               "https://mag.example/2026/page-not-found",
		"Subscribe to nothing: a year without streaming":               "https://mag.example/s/1",
		"Ich bin kein Roboter, sagt der Minister":                      "https://mag.example/s/1",
		"Login: the exhibition that asks who you are online":           "https://mag.example/s/1",
		"Loading | the dock workers who refused to do it any longer":   "https://mag.example/s/1",
		"Instagram is asking for your face":                            "https://mag.example/s/1",
		"The New York Times":                                           "https://wiki.example/wiki/The_New_York_Times",
		"Depeche Mode - Home":                                          "https://www.youtube.com/watch?v=dQw4w9WgXcQ",
		"Sia - One Moment":                                             "https://www.youtube.com/watch?v=dQw4w9WgXcQ",
		"Slowdive – Error":                                             "https://songs.example/track/4uLU6hMCjMI75M1A2tKUQC",
		"Trentemøller: Home":                                           "https://songs.example/track/4uLU6hMCjMI75M1A2tKUQC",
		"Bohemian Rhapsody - YouTube":                                  "https://www.youtube.com/watch?v=dQw4w9WgXcQ",
		"Index - Gémek":                                                "https://index.hu/belfold/2026/11/01/x/",
		"Jane Doe - TikTok":                                            "https://www.tiktok.com/@jd/video/7291",
		"NASA | Facebook":                                              "https://www.facebook.com/permalink/12",
		"Heron returns | The New York Times":                           "https://www.nytimes.com/2026/11/01/us/x.html",
		"Heron - BBC News":                                             "https://www.bbc.com/news/articles/c1",
		"Heron's return | Financial Times":                             "https://www.ft.com/content/abc",
		"Welcome to Python.org":                                        "https://www.python.org/",
		"Privacy Policy | Paper":                                       "https://paper.example/privacy",
		"AWS WAF - Web Application Firewall - Amazon Web Services":     "https://aws.amazon.com/waf/",
		"News: Heron returns":                                          "https://mag.example/s/1",
		"Datenschutz – Behörde verhängt Strafe":                        "https://mag.example/s/1",
		"Subscriber Exclusive | Heron returns to harbour":              "https://mag.example/s/1",
		"会員限定｜サギが港に帰る":                                                 "https://mag.example/s/1",
		"Sorry - Justin Bieber":                                        "https://songs.example/track/4uLU6hMCjMI75M1A2tKUQC",
		"Be Right Back | Black Mirror":                                 "https://films.example/title/tt2290780",
		"about:blank":                                                  "https://songs.example/track/4uLU6hMCjMI75M1A2tKUQC",
		"Cookies":                                                      "https://songs.example/track/4uLU6hMCjMI75M1A2tKUQC",
		"Fatal Error":                                                  "https://songs.example/track/4uLU6hMCjMI75M1A2tKUQC",
		"Coming Soon":                                                  "https://films.example/film/8812",
		"Join the club":                                                "https://club.example/s/1",
		"Welcome to Derry":                                             "https://mag.example/s/1",
		"Subscribe to happiness":                                       "https://mag.example/s/1",
		"Datenschutz: Behörde verhängt Strafe":                         "https://mag.example/s/1",
		"Age verification comes to the web":                            "https://mag.example/s/1",
		"Error 1202 and the moon landing":                              "https://mag.example/s/1",
		"Pur-Abo: Gericht stoppt Modell":                               "https://mag.example/s/1",
		"Chwila prawdy dla premiera":                                   "https://mag.example/s/1",
		"ログインボーナスの経済学":                                                 "https://mag.example/s/1",
		"Página no encontrada: el archivo perdido":                     "https://mag.example/s/1",
		"Privacy policy":                                               "https://paper.example/privacy-policy",
		"News | Paper":                                                 "https://paper.example/news",
		"Heron":                                                        "https://mag.example/player?src=/videos/heron.mp4&next=2",
	} {
		require.Empty(t, Why(title, address), title)
	}
}

func TestWallsAreKnownByTheirAddresses(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"https://bank.example/tosv2.html?vid=&uuid=2b&url=L25ld3MvYXJ0aWNsZXMvMjAyNi0wMS0wMS9hLXN0b3J5": true,
		"https://bank.example/check?u=aHR0cHM6Ly9iYW5rLmV4YW1wbGUvbmV3cy8x":                             true,  // https://bank.example/news/1
		"https://bank.example/check?u=aHR0cHM6Ly9vdGhlci5leGFtcGxlL25ld3MvMQ":                           false, // of another site
		"https://paper.example/members?returnUrl=%2F2026%2Fstory":                                       true,
		"https://id.example/in?redirect_uri=https%3A%2F%2Fpaper.example%2Fstory":                        true,
		"https://paper.example/list?next=2":                                                             false,
		"https://paper.example/?continue=%2F":                                                           false,
		"https://paper.example/player?src=/videos/a.mp4":                                                false,
		"https://paper.example/a?id=L25ld3M=":                                                           true, // /news
		"https://paper.example/a?id=YXJ0aWNsZQ==":                                                       false,
		"https://paper.example/a?id=12345678":                                                           false,
	} {
		at, err := url.Parse(address)
		require.NoError(t, err)
		require.Equal(t, want, IsWallAddress(at), address)
	}
}

func TestEachPhraseIsAWall(t *testing.T) {
	t.Parallel()
	require.Greater(t, len(phrases()), 400)
	for phrase := range phrases() {
		require.Equal(t, phrase, fold(phrase))
		require.Less(t, utf8.RuneCountInString(phrase), maxPhrase-20)
		require.NotEmpty(t, Why(phrase+"…", "https://paper.example/s/1"), phrase)
	}
}
